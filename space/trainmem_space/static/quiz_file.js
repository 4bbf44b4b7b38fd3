// A file that the reader asked for is made here, in the browser, and saved like a download.
watch('value', () => {
  const holder = element.querySelector('[data-name]');
  if (!holder) return;
  const url = URL.createObjectURL(new Blob([holder.textContent], {type: holder.dataset.type}));
  const link = Object.assign(document.createElement('a'), {href: url, download: holder.dataset.name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
});
