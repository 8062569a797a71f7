// What if: questions that POST /what-if takes, one form for each kind, and the answer in words.

import { el } from '../../dom.js';
import { tab, tabList } from '../../tabs.js';
import { answerWords, askWhatIf } from './answer.js';
import { FORMS } from './forms.js';

export default {
  id: 'what-if',
  title: 'What if',
  column: 'narrow',
  build({ head, body, store }) {
    const result = el('div', { id: 'what-if-result', role: 'status' });
    const views = FORMS.map((form) => view(form, store, result));
    body.append(el('p', { class: 'hint' }, 'Nothing is reserved or changed.'), ...views.map(({ panel }) => panel), result);
    head.append(tabList('Question', views, () => result.replaceChildren())); // the answer was to another question
  },
};

/** A tab and its form. All answers are shown in the same place. */
function view({ name, title, hint, fields, question }, store, result) {
  const shown = fields(store);
  const run = el('button', {}, 'Run');
  const fault = el('p', { class: 'fault all', id: `fault-if-${name}` });
  const submit = async (event) => {
    event.preventDefault();
    run.disabled = true;
    run.before(fault);
    blame(shown, fault, '', name);
    result.replaceChildren(el('p', { class: 'hint' }, 'computing'));
    try {
      const asked = question(new FormData(event.target));
      const told = await askWhatIf(asked);
      result.replaceChildren(...answerWords(told, asked).filter(Boolean));
    } catch (error) {
      result.replaceChildren();
      blame(shown, fault, error.message, name);
    }
    run.disabled = false;
  };
  const form = el('form', { class: 'trial', novalidate: true, submit }, shown.map(({ label }) => label), fault, run);
  return tab(`if-${name}`, title, el('p', { class: 'hint' }, hint), form);
}

/** Show an error, beside its field if it names one; "" clears it. */
function blame(fields, fault, text, name) {
  const guilty = text && (fields.find(({ key }) => key && text.startsWith(key)) ?? fields.find(({ takesRest }) => takesRest));
  for (const { input, label } of fields) {
    input.removeAttribute('aria-invalid');
    input.removeAttribute('aria-describedby');
    if (guilty?.label === label) {
      input.setAttribute('aria-invalid', 'true');
      input.setAttribute('aria-describedby', `fault-if-${name}`);
      label.after(fault);
      input.focus();
    }
  }
  if (guilty?.point) guilty.point(text);
  fault.textContent = text;
}
