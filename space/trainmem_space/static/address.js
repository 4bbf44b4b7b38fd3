// The page's address follows the scenario; what else it says (tab, theme) stays.
watch('value', () => {
  // A scenario too large for a link has none; the one before must not stand in its place.
  const link = element.querySelector('a');
  const address = new URL(link?.getAttribute('href') ?? location.pathname, location.href);
  for (const key of ['tab', '__theme']) {
    const value = new URL(location.href).searchParams.get(key);
    if (value !== null) address.searchParams.set(key, value);
  }
  history.replaceState(history.state, '', address);
});
