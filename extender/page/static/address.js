// Addresses that can be shared: #pod/NAMESPACE/NAME for the drawer, #workloads?namespace=a for a panel with a query.

/** What an address names: {drawer, name}, {panel, query}, or {}. */
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

/** The address of a panel with a query; empty values are left out. */
export function panelAddress(panel, query = {}) {
  const stated = Object.entries(query).filter(([, value]) => value);
  const text = new URLSearchParams(stated).toString().replaceAll('%2F', '/');
  return `#${panel}${text && `?${text}`}`;
}

/** Replace the address without navigating; "" clears it. */
export const say = (hash) => history.replaceState(null, '', hash || location.pathname + location.search);
