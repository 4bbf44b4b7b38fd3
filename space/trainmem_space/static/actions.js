// Buttons inside the answer: one event that says which was pressed.
element.addEventListener('click', (event) => {
  const button = event.target.closest('[data-action]');
  if (button) trigger('click', {action: button.dataset.action, index: Number(button.dataset.index ?? -1)});
});
