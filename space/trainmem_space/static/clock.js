// Stepping through the instants of one step: buttons, arrow keys, and a slider along the axis of time.
let at = null;
const SLIDER = 1000;
const clock = () => element.querySelector('.tm-clock');
const instants = () => [...element.querySelectorAll('.tm-instants > section')];
const show = (index) => {
  const all = instants();
  if (!all.length) return;
  at = Math.max(0, Math.min(all.length - 1, index));
  all.forEach((section, number) => { section.hidden = number !== at; });
  const {x, top} = all[at].dataset;
  const name = all[at].querySelector('h3').firstChild.textContent.trim();
  // The line comes down to what is allocated, so that it hides none of it.
  Object.assign(element.querySelector('.tm-cursor').style, {left: `${100 * x}%`, bottom: top});
  const slider = element.querySelector('input[type=range]');
  slider.value = Math.round(SLIDER * x);
  slider.setAttribute('aria-valuetext', name);
  element.querySelector('.tm-at').textContent = `${name}, ${at + 1} of ${all.length}`;
  element.querySelector('[data-step="-1"]').disabled = at === 0;
  element.querySelector('[data-step="1"]').disabled = at === all.length - 1;
};
const nearest = (x) => {
  const far = (section) => Math.abs(section.dataset.x - x);
  return instants().reduce((best, section, index, all) => (far(section) < far(all[best]) ? index : best), 0);
};
const peak = () => Number(clock()?.dataset.peak ?? 0);
element.addEventListener('click', (event) => {
  const hand = event.target.closest('[data-step]');
  if (hand) show(at + Number(hand.dataset.step));
});
element.addEventListener('input', (event) => {
  if (event.target.type === 'range') show(nearest(event.target.value / SLIDER));
});
document.addEventListener('keydown', (event) => {
  if (!element.offsetParent || event.altKey || event.ctrlKey || event.metaKey) return;
  const onSlider = element.contains(event.target) && event.target.type === 'range';
  if (!onSlider && event.target.closest('input, textarea, select, [role=listbox], [role=tab], [role=radiogroup]')) return;
  const last = instants().length - 1;
  const to = {
    ArrowLeft: at - 1, ArrowRight: at + 1,
    ...(onSlider && {ArrowDown: at - 1, ArrowUp: at + 1, Home: 0, End: last, PageDown: at - 3, PageUp: at + 3}),
  }[event.key];
  if (to !== undefined) { event.preventDefault(); show(to); }
});
watch('value', () => show(peak()));
show(peak());
