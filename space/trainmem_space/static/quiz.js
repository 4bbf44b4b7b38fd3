// One event for every button, field and key of the quiz; the countdown; where the focus goes.
const send = (action, more = {}) => trigger('click', {action, ...more});
const LONGEST_FILE = 1 << 20;

const ticked = () => {
  const boxes = [...element.querySelectorAll('[data-tick]')].filter((box) => box.checked);
  const of = (kind) => boxes.filter((box) => box.dataset.tick === kind).map((box) => Number(box.dataset.index));
  return {said: of('must'), added: of('senior'), avoided: boxes.some((box) => box.dataset.tick === 'avoided')};
};

const copy = async (button) => {
  const code = element.querySelector('.tm-share code');
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = 'Copied';
  } catch {
    const range = document.createRange();
    range.selectNodeContents(code);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = 'Selected';
  }
};

element.addEventListener('click', (event) => {
  const button = event.target.closest('[data-action]');
  if (!button || button.disabled) return;
  const action = button.dataset.action;
  if (action === 'copy') copy(button);
  else if (action === 'start') send(action, {mode: button.dataset.mode, topic: element.querySelector('select')?.value});
  else if (action === 'choose') send(action, {index: Number(button.dataset.index)});
  else if (action === 'ticked') send(action, ticked());
  else send(action);
});

element.addEventListener('submit', (event) => {
  event.preventDefault();
  const text = event.target.querySelector('input').value;
  if (text.trim()) send('answer', {text});
});

element.addEventListener('change', async (event) => {
  const file = event.target.type === 'file' ? event.target.files[0] : null;
  if (!file) return;
  send('import', {text: file.size > LONGEST_FILE ? '' : await file.text()});
});

document.addEventListener('keydown', (event) => {
  if (!element.offsetParent || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.target.closest('input, textarea, select')) return;
  const options = [...element.querySelectorAll('button.tm-option')];
  const index = /^[1-9]$/.test(event.key) ? Number(event.key) - 1 : 'abcdefghij'.indexOf(event.key.toLowerCase());
  if (options.length && event.key.length === 1 && index >= 0) options[index]?.click();
});

let ends = null;
const tick = () => {
  const clock = element.querySelector('.tm-left');
  if (!clock || ends === null) return;
  const left = Math.max(0, Math.round((ends - Date.now()) / 1000));
  const text = `${Math.floor(left / 60)}:${String(left % 60).padStart(2, '0')}`;
  if (clock.textContent !== text) clock.textContent = text;
  if (left === 0) { ends = null; send('time-up'); }
};
setInterval(tick, 250);

const arrive = () => {
  const left = element.querySelector('[data-left]')?.dataset.left;
  ends = left === undefined ? null : Date.now() + 1000 * Number(left);
  tick();
  if (!element.offsetParent) return;
  const target = element.querySelector('.tm-done [data-action="next"], .tm-field input, .tm-end .tm-primary');
  target?.focus({preventScroll: true});
};
watch('value', arrive);
send('arrived');
