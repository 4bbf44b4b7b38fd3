// The page's address follows the scenario; what else it says (tab, theme) stays.
watch('value', () => {
  const link = element.querySelector('a');
  if (!link) return;
  const address = new URL(link.getAttribute('href'), location.href);
  for (const key of ['tab', '__theme']) {
    const value = new URL(location.href).searchParams.get(key);
    if (value !== null) address.searchParams.set(key, value);
  }
  history.replaceState(history.state, '', address);
});
