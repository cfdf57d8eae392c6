"use strict";
// Comments, strings, numbers and keywords of code, as highlights of CSS: they add no element, and copies have no marks.
// Only of texts that name a language which is listed: numbers in prose are none of code.
(() => {
  if (!CSS.highlights) return;
  const LONGEST = 200_000; // characters of a page, which a frame has time for
  const TEXTS = String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?`;
  const BLOCKS = String.raw`\/\*[^]*?(?:\*\/|$)`;
  const NUMBERS = String.raw`\b\d[\w.]*`;
  const words = (text) => new Set(text.split(" "));
  const syntax = (comments, texts, keywords) => ({
    pattern: new RegExp(`(?<comment>${comments})|(?<string>${texts})|(?<number>${NUMBERS})|(?<word>[A-Za-z_]\\w*)`, "g"),
    keywords: words(keywords),
  });

  const JSON_TEXT = syntax("(?!)", String.raw`"(?:\\.|[^"\\\n])*"?`, "true false null");
  const HASH = syntax("#.*", TEXTS, "and as assert async await break case class continue def del do done elif else end esac except export "
    + "False false fi finally for from function global if import in is lambda local match None nonlocal not null or pass raise return "
    + "self then True true try unless until when while with yield");
  const SLASH = syntax(String.raw`\/\/.*|${BLOCKS}`, `${TEXTS}|\`(?:\\\\.|[^\`\\\\])*\`?`, "abstract as async await bool boolean break case catch "
    + "char class const continue default defer delete do double else enum export extends false final finally float fn for func function go if "
    + "impl implements import in instanceof int interface let long match mod mut namespace new nil null override package private protected "
    + "pub public return self static string struct super switch this throw true try type typeof undefined union use using var void while yield");
  const DASH = syntax(`--.*|${BLOCKS}`, String.raw`"[^"\n]*"?|'[^'\n]*'?`, "add all alter and as asc between by case create cross delete desc "
    + "distinct drop else end exists false from full group having if in index inner insert into is join left like limit not null offset on or "
    + "order outer over partition primary replace returning right select set table then true union unique update using values view when where with");
  const LANGUAGES = new Map([
    [JSON_TEXT, "json jsonl ndjson"],
    [HASH, "bash dockerfile elixir makefile perl powershell py python r rb ruby sh shell toml yaml yml zsh"],
    [SLASH, "c cpp cs csharp css dart go graphql java javascript js jsx kotlin kt php proto rs rust scala scss swift ts tsx typescript"],
    [DASH, "lua plpgsql postgresql sql sqlite"],
  ].flatMap(([known, names]) => names.split(" ").map((name) => [name, known])));

  const kindOf = (known, found) => {
    if (found.word === undefined) return Object.keys(found).find((kind) => found[kind] !== undefined);
    return known.keywords.has(known === DASH ? found.word.toLowerCase() : found.word) ? "keyword" : null;
  };

  const highlight = () => {
    const marks = Object.fromEntries(["comment", "string", "number", "keyword"].map((kind) => [kind, new Highlight()]));
    let rest = LONGEST;
    for (const block of document.querySelectorAll("pre.code[data-language]")) {
      const known = LANGUAGES.get(block.dataset.language);
      if (!known) continue;
      for (const node of block.childNodes) {
        if (node.nodeType !== Node.TEXT_NODE || (rest -= node.length) < 0) continue;
        for (const match of node.data.matchAll(known.pattern)) {
          const kind = kindOf(known, match.groups);
          if (kind) {
            marks[kind].add(new StaticRange({
              startContainer: node, startOffset: match.index, endContainer: node, endOffset: match.index + match[0].length,
            }));
          }
        }
      }
    }
    for (const [kind, ranges] of Object.entries(marks)) CSS.highlights.set(`code-${kind}`, ranges);
  };

  let isDue = false;
  new MutationObserver(() => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => { isDue = false; highlight(); });
  }).observe(document.body, { childList: true, subtree: true });
  highlight();
})();
