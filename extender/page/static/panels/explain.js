// A field that opens the explanation of a pod.

import { el } from '../dom.js';

export default {
  id: 'explain',
  title: 'Explain a pod',
  column: 'narrow',
  build({ body }) {
    const field = el('input', { name: 'pod', required: true, placeholder: 'namespace/name', autocomplete: 'off', spellcheck: 'false' });
    const submit = (event) => {
      event.preventDefault();
      const pod = field.value.trim();
      location.hash = `pod/${encodeURI(pod.includes('/') ? pod : `default/${pod}`)}`;
    };
    const label = el('label', { class: 'grow' }, el('span', { class: 'unseen' }, 'Pod, as namespace/name'), field);
    body.append(el('form', { class: 'inline', submit }, label, el('button', {}, 'Explain')));
  },
};
