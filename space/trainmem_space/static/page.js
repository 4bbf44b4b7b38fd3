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
