() => {
  const hint = () => document.querySelector('#hint .tm-hint');
  const leverOf = (node) => node.closest?.('[id^="lever-"]');

  document.addEventListener('focusin', (event) => {
    const lever = leverOf(event.target);
    if (!lever || !hint()) return;
    const moves = JSON.parse(hint().dataset.hints)[lever.id.slice('lever-'.length)];
    const label = lever.querySelector('[data-testid="block-info"], label span')?.textContent?.trim();
    if (!moves) return;
    hint().querySelector('b').textContent = label ?? '';
    hint().querySelector('span').textContent = moves;
  });

  // Enter means what was typed. Gradio takes the first entry of the list instead: also for a field that was
  // emptied, and for a name that another one begins with.
  let typed = null;
  let before = '';
  const settled = () => setTimeout(() => { before = document.activeElement?.value; });
  document.addEventListener('focusin', (event) => { typed = null; before = event.target.value; });
  document.addEventListener('mousedown', (event) => { if (event.target.closest?.('[role=option]')) settled(); }, true);
  document.addEventListener('input', (event) => { typed = event.target.role === 'combobox' ? event.target : null; });
  document.addEventListener('keydown', (event) => {
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') typed = null;
    if (event.key === 'Escape' && event.target === typed) {
      // What was typed and not entered is taken back: the answer is still that of what stood there.
      typed.value = before;
      typed.dispatchEvent(new Event('input', {bubbles: true}));
      typed = null;
    }
    if (event.key === 'Enter') settled();
    if (event.key !== 'Enter' || event.target !== typed) return;
    const text = typed.value.trim().toLowerCase();
    const options = [...typed.closest('[id]').querySelectorAll('[role=option]')];
    const exact = options.find((option) => option.ariaLabel.toLowerCase() === text);
    if (text && !exact) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    exact ? exact.dispatchEvent(new MouseEvent('mousedown', {bubbles: true, cancelable: true})) : typed.blur();
  }, true);

  // One stop of the Tab key a group of radios, whose arrow keys choose; none for the list under a field, nor for a
  // table that needs no scrolling. Gradio names every radio anew, and Chromium stops at what scrolls.
  const widths = new ResizeObserver((entries) => {
    for (const {target} of entries) {
      const region = target.closest('.tm-wide');
      region.tabIndex = region.scrollWidth > region.clientWidth ? 0 : -1;
    }
  });
  const tidy = () => {
    for (const radio of document.querySelectorAll('fieldset[id] input[name^="radio-"]')) {
      radio.name = `group-${radio.closest('fieldset').id}`;
    }
    for (const list of document.querySelectorAll(':is(.options, .option-list):not([tabindex])')) list.tabIndex = -1;
    for (const region of document.querySelectorAll('.tm-wide')) {
      for (const box of [region, region.firstElementChild]) if (box) widths.observe(box);
    }
  };
  new MutationObserver(tidy).observe(document.body, {childList: true, subtree: true});
  tidy();

  // On a phone the form is folded under the verdict.
  document.addEventListener('click', (event) => {
    const fold = event.target.closest?.('.tm-fold-levers');
    if (!fold) return;
    const open = fold.closest('.tm-calculator').classList.toggle('tm-levers-open');
    fold.setAttribute('aria-expanded', open);
    fold.textContent = open ? 'Done' : 'Change the job';
  });

  // The address says which tab is open, so that a link opens it.
  window.trainmem = {
    opened(tab) {
      const address = new URL(location.href);
      tab === 'calculator' ? address.searchParams.delete('tab') : address.searchParams.set('tab', tab);
      history.replaceState(history.state, '', address);
    },
  };

  // The control that an error names is marked for eyes and for screen readers.
  const mark = () => {
    const named = document.querySelector('.tm-error[data-lever]')?.dataset.lever;
    for (const lever of document.querySelectorAll('[id^="lever-"]')) {
      const wrong = lever.id === `lever-${named}`;
      lever.classList.toggle('tm-wrong', wrong);
      for (const field of lever.querySelectorAll('input, textarea')) {
        wrong ? field.setAttribute('aria-invalid', 'true') : field.removeAttribute('aria-invalid');
      }
    }
  };
  new MutationObserver(mark).observe(document.querySelector('#error') ?? document.body, {childList: true, subtree: true, attributes: true, attributeFilter: ['data-lever']});
}
