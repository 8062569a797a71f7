// Search for pods, owners, namespaces, gangs, nodes and GPU models; each result is a link.

import { panelAddress } from './address.js';
import { ask, byId, el, fill } from './dom.js';

const WAIT_MS = 200;
const MOST = 6;
const MAX_CHARS = 200;

/** Add the search field to the header; the key `/` focuses it. */
export function addSearch(store) {
  const field = el('input', {
    id: 'search-field', type: 'search', maxlength: MAX_CHARS, placeholder: 'Search', autocomplete: 'off', spellcheck: 'false',
    'aria-label': 'Search pods, owners, namespaces, nodes and GPU models', 'aria-keyshortcuts': '/', 'aria-controls': 'found',
  });
  const results = el('div', { id: 'found', class: 'found', hidden: true });
  const said = el('p', { class: 'unseen', role: 'status' });
  const root = byId('search');
  root.append(field, el('kbd', { 'aria-hidden': 'true' }, '/'), said, results);
  let number = 0;
  let waiting;

  const hide = () => {
    number += 1;
    clearTimeout(waiting);
    results.hidden = true;
  };
  const look = async () => {
    const text = field.value.trim();
    if (!text) return hide();
    const mine = ++number;
    let kinds = [];
    let none = 'No name contains this text.';
    try {
      const { found, totals } = await ask(`workloads?${new URLSearchParams({ q: text, limit: 1 })}`);
      kinds = [...ofPods(found), ...ofNodes(store.nodes.values(), text), ...all(text, totals.pods)];
    } catch (error) {
      none = error.message;
    }
    if (mine !== number) return;
    const num = kinds.reduce((sum, [, links]) => sum + links.length, 0);
    said.textContent = num ? `${num} results` : none;
    fill(results, ...kinds.map(([title, links]) => el('div', {}, el('h2', {}, title), el('ul', {}, links.map((one) => el('li', {}, one))))), !num && el('p', { class: 'hint' }, none));
    results.hidden = false;
  };
  const links = () => [...results.querySelectorAll('a')];

  field.addEventListener('input', () => {
    clearTimeout(waiting);
    waiting = setTimeout(look, WAIT_MS);
  });
  field.addEventListener('focus', () => field.value.trim() && look());
  root.addEventListener('keydown', (event) => {
    const at = links().indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
    if (event.key === 'Escape') {
      hide();
      field.focus();
      hide(); // focusing has started a search
    } else if (event.key === 'Enter' && event.target === field) {
      clearTimeout(waiting);
      location.hash = target(field.value.trim(), links());
      hide();
    } else if (to != null) {
      event.preventDefault();
      (links()[to] ?? field).focus();
    }
  });
  root.addEventListener('focusout', (event) => root.contains(event.relatedTarget) || hide());
  results.addEventListener('click', (event) => event.target.closest('a') && hide());
  results.addEventListener('pointerdown', (event) => event.target.closest('a') || event.preventDefault());
  document.addEventListener('keydown', (event) => {
    const typing = event.target.closest('input, textarea, select, [contenteditable]');
    if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || typing || document.querySelector('dialog[open]')) return;
    event.preventDefault();
    field.focus();
    field.select();
  });
}

/** Where Enter leads: to an exact match, else to all pods that contain the text. */
function target(text, links) {
  const exact = links.find((one) => one.textContent === text || one.textContent.endsWith(`/${text}`));
  return exact?.getAttribute('href') ?? panelAddress('workloads', { by: 'pod', q: text });
}

const named = (title, links) => (links.length ? [[title, links]] : []);
const to = (href, text) => el('a', { href }, text);
const shown = (query, text) => to(panelAddress('workloads', query), text);

function ofPods({ pods, owners, namespaces, gangs }) {
  const owner = (name) => {
    const [namespace, ...rest] = name.split('/');
    return shown({ by: 'pod', namespace, owner: rest.join('/') }, name);
  };
  return [
    ...named('Pods', pods.map((name) => to(`#pod/${encodeURI(name)}`, name))),
    ...named('Owners', owners.map(owner)),
    ...named('Namespaces', namespaces.map((namespace) => shown({ namespace }, namespace))),
    ...named('Gangs', gangs.map((gang) => shown({ by: 'pod', gang }, gang))),
  ];
}

/** Nodes and GPU models, from the page's own data. */
function ofNodes(nodes, text) {
  const lower = text.toLowerCase();
  const having = (names) =>
    [...new Set(names)]
      .filter((name) => name.toLowerCase().includes(lower))
      .sort((one, other) => other.toLowerCase().startsWith(lower) - one.toLowerCase().startsWith(lower) || one.localeCompare(other, 'en', { numeric: true }))
      .slice(0, MOST);
  const all = [...nodes];
  return [
    ...named('Nodes', having(all.map(({ node }) => node)).map((name) => to(`#node/${encodeURI(name)}`, name))),
    ...named('GPU models', having(all.map(({ model }) => model).filter(Boolean)).map((q) => shown({ by: 'pod', q }, q))),
  ];
}

const all = (text, count) => (count ? named('Workloads', [shown({ by: 'pod', q: text }, `all ${count === 1 ? 'pods' : `${count} pods`} with “${text}”`)]) : []);
