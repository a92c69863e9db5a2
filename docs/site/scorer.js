"use strict";
// The search of the site ranks by this.  Pages for users come first: one word occurs most often in
// records of measurements, which few readers look for.
var Scorer = {
  score: ([page, , , , score]) => {
    if (/^docs\/(lab|design)\/|^(bench|tests|findings|changelog\.d)\//.test(page)) return score - 200;
    if (/^docs\/(benchmarks|limits|wire_format|checkpoint_format)$|^(CHANGELOG|ARCHITECTURE|CONTRIBUTING|RELEASING)$/.test(page)) return score - 100;
    return score;
  },
  // Sphinx's own values, which it takes from here or not at all.
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
