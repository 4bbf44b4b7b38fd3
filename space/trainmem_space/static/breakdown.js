// Rows that the reader opened stay open when the figures change.
const open = new Set();
element.addEventListener('toggle', (event) => {
  const key = event.target.dataset.key;
  if (key) event.target.open ? open.add(key) : open.delete(key);
}, true);
watch('value', () => {
  for (const row of element.querySelectorAll('details')) row.open = open.has(row.dataset.key);
});
