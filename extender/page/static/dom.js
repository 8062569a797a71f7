// Elements and formatting. Text from the cluster always becomes text nodes.

/** An element with attributes (functions become listeners) and children; strings are text, null is left out. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, '');
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child != null && child !== false));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** "20,000", "0.25" */
export const figure = (count, digits = 2) => count.toLocaleString('en', { maximumFractionDigits: digits });

/** "1 node", "2 nodes" */
export const plural = (count, noun) => `${figure(count)} ${noun}${count === 1 ? '' : 's'}`;

export const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : '-');

export const memory = (mib) => (mib >= 1024 ? `${+(mib / 1024).toFixed(1)} GiB` : `${mib} MiB`);

export const clock = (unixSeconds) => new Date(1000 * unixSeconds).toLocaleTimeString([], { hour12: false });

/** "Nov 26, 21:11", with the year if it is not the current one. */
export function stamp(unixSeconds) {
  const at = new Date(1000 * unixSeconds);
  const year = at.getFullYear() === new Date().getFullYear() ? undefined : 'numeric';
  return at.toLocaleString([], { year, month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit', hour12: false });
}

/** "12 s", "3 min", "5 h", "2 d" */
export function age(seconds) {
  if (seconds < 90) return `${Math.max(Math.round(seconds), 0)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

/** A table; each row is a list of cells, the first of them its heading. Narrow windows stack a row's cells. */
export function table(caption, headings, rows) {
  const cell = (content, index) =>
    el(index ? 'td' : 'th', { 'data-heading': headings[index], scope: index ? null : 'row' }, content instanceof Node ? content : String(content ?? '-'));
  return el(
    'div',
    { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `${caption}, scrollable` },
    el(
      'table',
      { class: 'stacks' },
      el('caption', { class: 'unseen' }, caption),
      el('thead', {}, el('tr', {}, headings.map((heading) => el('th', { scope: 'col' }, heading)))),
      el('tbody', {}, rows.map((row) => el('tr', {}, row.map(cell)))),
    ),
  );
}

/** Replace an element's children if they differ; focus stays on the child with the same address or key. */
export function fill(parent, ...children) {
  const wanted = el('div', {}, ...children).childNodes;
  const before = parent.childNodes;
  if (before.length === wanted.length && [...before].every((node, index) => node.isEqualNode(wanted[index]))) return;
  const focused = parent.contains(document.activeElement) && keyOf(document.activeElement);
  const { scrollTop, scrollLeft } = parent.querySelector('.scroll') ?? {};
  parent.replaceChildren(...wanted);
  parent.querySelector('.scroll')?.scrollTo(scrollLeft ?? 0, scrollTop ?? 0);
  if (focused) [...parent.querySelectorAll('a, button, .scroll')].find((node) => keyOf(node) === focused)?.focus();
}

const keyOf = (node) => node.getAttribute('href') ?? node.dataset.key ?? node.getAttribute('aria-label');

/** A link that opens the drawer for a pod or a node. */
export const link = (kind, name) => el('a', { href: `#${kind}/${encodeURI(name)}` }, name);

/** An error response, as a sentence; `status` is the HTTP status. */
export class Refusal extends Error {
  constructor(told, status) {
    super(told.detail || told.Error || `Kerf answers with status ${status}`);
    this.status = status;
  }
}

/** Fetch JSON. Throws an Error with a sentence: a Refusal for an error response. */
export async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error('Kerf does not answer');
  }
  const told = await response.json().catch(() => null);
  if (!response.ok) throw new Refusal(told ?? {}, response.status);
  if (told === null) throw new Error('Kerf does not answer'); // it stopped within the response
  return told;
}
