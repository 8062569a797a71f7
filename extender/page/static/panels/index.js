// The panels of the page, in their order. Each is an object in a file of its own:
//   id, title   of its card; `#id` is its section
//   column      'wide' or 'narrow'
//   build       called once with {head, body, store}: the elements to fill, and the data (store.js); what it returns,
//               if anything, is called with the query of the address whenever that is `#id?query`
// Those of parts come last, each `panel.js` in a folder `page` of the part.

import { PANELS_OF_PARTS } from '../parts.js';
import cluster from './cluster.js';
import decisions from './decisions.js';
import explain from './explain.js';
import waiting from './waiting.js';
import workloads from './workloads.js';

export const PANELS = [cluster, waiting, decisions, explain, workloads, ...PANELS_OF_PARTS];
