// The dot that is pointed at, or tapped, tells its job under the chart.
const tell = (event) => {
  const dot = event.target.closest?.('.tm-scatter [data-row]');
  if (!dot) return;
  const row = dot.dataset.row;
  element.querySelectorAll('.tm-scatter .told').forEach((other) => other.classList.remove('told'));
  element.querySelectorAll(`.tm-scatter [data-row="${row}"]`).forEach((same) => same.classList.add('told'));
  const sentence = dot.closest('.tm-scatter').parentElement.querySelectorAll('ol > li')[Number(row)];
  element.querySelector('.tm-said').textContent = sentence.textContent;
};
element.addEventListener('pointerover', tell);
element.addEventListener('click', tell);
