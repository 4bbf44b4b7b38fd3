// Stepping through the instants of one step: buttons, slider, arrow keys.
let at = null;
const clock = () => element.querySelector('.tm-clock');
const show = (index) => {
  const instants = element.querySelectorAll('.tm-instants > section');
  if (!instants.length) return;
  at = Math.max(0, Math.min(instants.length - 1, index));
  instants.forEach((section, number) => { section.hidden = number !== at; });
  element.querySelector('.tm-cursor').style.left = instants[at].dataset.x;
  element.querySelector('input[type=range]').value = at;
  element.querySelector('[data-step="-1"]').disabled = at === 0;
  element.querySelector('[data-step="1"]').disabled = at === instants.length - 1;
};
const peak = () => Number(clock()?.dataset.peak ?? 0);
element.addEventListener('click', (event) => {
  const hand = event.target.closest('[data-step]');
  if (hand) show(at + Number(hand.dataset.step));
});
element.addEventListener('input', (event) => {
  if (event.target.type === 'range') show(Number(event.target.value));
});
document.addEventListener('keydown', (event) => {
  if (!element.offsetParent || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.target.closest('input, textarea, select, [role=listbox], [role=tab], [role=radiogroup]')) return;
  const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  if (move) { event.preventDefault(); show(at + move); }
});
watch('value', () => show(peak()));
show(peak());
