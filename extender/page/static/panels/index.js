// The panels of the page, in order. Each is an object in its own file:
//   id, title   of its card; `#id` is its address
//   column      'wide' or 'narrow'
//   build       called once with {head, body, store}: the elements to fill, and the data (store.js); may return a
//               function that is called with the query whenever the address is `#id?query`
// Panels of parts come last: page/panel.js in the part's folder.

import { PANELS_OF_PARTS } from '../parts.js';
import cluster from './cluster.js';
import decisions from './decisions.js';
import explain from './explain.js';
import waiting from './waiting.js';
import workloads from './workloads.js';

export const PANELS = [cluster, waiting, decisions, explain, workloads, ...PANELS_OF_PARTS];
