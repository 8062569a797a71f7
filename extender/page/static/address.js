// Addresses that can be shared: #pod/NAMESPACE/NAME of the drawer, #workloads?namespace=a of a panel and what it shows.

/** What an address names: {drawer, name}, or {panel, query}; nothing of it where it names neither. */
export function named(hash) {
  const [, drawer, name] = /^#(pod|node|room)\/(.+)$/.exec(hash) ?? [];
  if (drawer) return { drawer, name: decoded(name) };
  const [, panel, query] = /^#([a-z-]+)(?:\?(.*))?$/.exec(hash) ?? [];
  return panel ? { panel, query: new URLSearchParams(query ?? '') } : {};
}

function decoded(text) {
  try {
    return decodeURI(text);
  } catch {
    return text; // a lone %
  }
}

/** The address of a panel that shows something; what is empty is left out. */
export function panelAddress(panel, query = {}) {
  const stated = Object.entries(query).filter(([, value]) => value);
  const text = new URLSearchParams(stated).toString().replaceAll('%2F', '/');
  return `#${panel}${text && `?${text}`}`;
}

/** Have the address say what is shown, without going there; "" for nothing. */
export const say = (hash) => history.replaceState(null, '', hash || location.pathname + location.search);
