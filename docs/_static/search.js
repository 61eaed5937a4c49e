/* Rank the pages for a question that is typed as it comes to mind.
 *
 * Sphinx wants every word of the query on a page, and gives all pages with a word in a heading the
 * same score. Here words may be missing, rare words count more than common ones, and a word of the
 * page's title, or of an entry that the page adds to the index, counts more than one of a heading, and
 * that more than one of the text. The reference has almost every word, so its pages come after equally
 * good ones.
 */
if (typeof Search !== "undefined") {
  const IN_TITLE = 5, IN_HEADING = 3, IN_TEXT = 1, REFERENCE = 0.6, LEAST = 0.5, BEST = 14;

  const pagesWith = (index, word) => [].concat(Object.hasOwn(index, word) ? index[word] : []);

  const startingWith = (index, start) =>
    Object.keys(index).filter((word) => word.startsWith(start)).flatMap((word) => index[word]);

  Search.performTermsSearch = (searchTerms, excludedTerms) => {
    const { terms, titleterms, docnames, titles, filenames, indexentries } = Search._index;
    const stemmer = new Stemmer();
    const wordsOf = (text) => splitQuery(text.toLowerCase()).map((word) => stemmer.stemWord(word));
    const titleWords = titles.map((title) => new Set(wordsOf(title)));
    for (const [entry, places] of Object.entries(indexentries))
      for (const [page, , isMain] of places)
        if (isMain) wordsOf(entry).forEach((word) => titleWords[page].add(word));
    const scores = new Array(docnames.length).fill(0);
    let total = 0;
    for (const word of searchTerms) {
      const titled = docnames.flatMap((_, page) => titleWords[page].has(word) ? [page] : []);
      let text = pagesWith(terms, word), headings = pagesWith(titleterms, word);
      if (!titled.length && !text.length && !headings.length) {
        text = startingWith(terms, word);
        headings = startingWith(titleterms, word);
      }
      const found = new Set([...titled, ...text, ...headings]);
      if (!found.size) continue;
      const rarity = Math.log(1 + docnames.length / found.size);
      total += IN_TITLE * rarity;
      for (const page of found) {
        const place =
          titled.includes(page) ? IN_TITLE : headings.includes(page) ? IN_HEADING : IN_TEXT;
        scores[page] += place * rarity;
      }
    }
    for (const word of excludedTerms)
      for (const page of [...pagesWith(terms, word), ...pagesWith(titleterms, word)])
        scores[page] = 0;
    docnames.forEach((name, page) => {
      if (name.startsWith("api/")) scores[page] *= REFERENCE;
    });
    const least = LEAST * Math.max(...scores);
    return docnames.flatMap((name, page) =>
      scores[page] > 0 && scores[page] >= least
        ? [[name, titles[page], "", null, BEST * scores[page] / total, filenames[page], "text"]]
        : []);
  };

  // The target of an index entry has no text, of which Sphinx would show the beginning.
  const summary = Search.makeSearchSummary;
  Search.makeSearchSummary = (html, keywords, anchor) =>
    summary(html, keywords, anchor) ?? summary(html, keywords) ?? document.createElement("p");
}
