// The report lives in a sandboxed frame: it is told the page's theme, and tells how tall it is.
const frame = () => element.querySelector('iframe.tm-report');
const isDark = () => document.querySelector('.dark') !== null;
const tell = () => frame()?.contentWindow.postMessage({trainmemTheme: isDark() ? 'dark' : 'light'}, '*');

window.addEventListener('message', (event) => {
  const shown = frame();
  if (!shown || event.source !== shown.contentWindow) return;
  const height = Number(event.data?.trainmemHeight);
  if (height > 0 && height < 100000) shown.style.height = `${Math.ceil(height)}px`;
});
element.addEventListener('load', tell, true);
new MutationObserver(tell).observe(document.body, {attributes: true, attributeFilter: ['class']});
new MutationObserver(tell).observe(document.documentElement, {attributes: true, attributeFilter: ['class']});
