"use strict";
// Keys (/ j k enter esc n p), two marked runs, and live pages; everything else works without this script.
(() => {
  const INTERVAL = 1000;
  const rows = () => [...document.querySelectorAll("a.row, a.r, summary")].filter((row) => row.checkVisibility());

  const move = (step) => {
    const all = rows();
    const at = all.indexOf(document.activeElement);
    const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1)];
    if (next) {
      next.focus();
      next.scrollIntoView({ block: "nearest" });
    }
  };

  const follow = (selector) => {
    const link = document.querySelector(selector);
    if (link) location.assign(link.href);
  };

  const KEYS = {
    j: () => move(1),
    k: () => move(-1),
    n: () => follow("a[rel=next]"),
    p: () => follow("a[rel=prev]"),
    "/": () => (document.querySelector(".filters input:not([type=hidden])") || document.querySelector(".find input")).focus(),
    Escape: () => {
      if (document.activeElement !== document.body) document.activeElement.blur();
      else follow("link[rel=up]");
    },
  };

  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.matches("input:not([type=checkbox])");
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key] || (isTyping && event.key !== "Escape")) return;
    event.preventDefault();
    KEYS[event.key]();
  });

  const mark = () => {
    const button = document.querySelector("button[form=compare]");
    if (button) button.disabled = document.querySelectorAll("input[form=compare]:checked").length !== 2;
  };
  document.addEventListener("change", mark);
  mark();

  const keyOf = (details, index) => details.dataset.key || `#${index}`;

  const replace = (old, fresh) => {
    const open = new Map([...old.querySelectorAll("details")].map((item, index) => [keyOf(item, index), item.open]));
    const marked = new Set([...old.querySelectorAll("input:checked")].map((box) => box.value));
    const focusable = (page) => [...page.querySelectorAll("a, summary, input")];
    const focused = focusable(old).indexOf(document.activeElement);
    const address = focused >= 0 && document.activeElement.getAttribute("href");
    fresh.querySelectorAll("details").forEach((item, index) => {
      if (open.has(keyOf(item, index))) item.open = open.get(keyOf(item, index));
    });
    fresh.querySelectorAll("input[type=checkbox]").forEach((box) => { box.checked = marked.has(box.value); });
    old.replaceWith(fresh);
    if (focused >= 0) {
      const all = focusable(fresh);
      const same = address ? all.find((link) => link.getAttribute("href") === address) : all[focused];
      if (same) same.focus({ preventScroll: true });
    }
    mark();
  };

  const refresh = async () => {
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const old = document.querySelector("[data-live]");
    const fresh = page.querySelector("[data-live]") || page.querySelector("main > div:last-of-type");
    if (old && fresh && document.getSelection().isCollapsed) replace(old, document.adoptNode(fresh));
  };

  let seen = null;
  const poll = async () => {
    if (!document.querySelector("[data-live]")) return;
    const start = performance.now();
    if (!document.hidden) {
      try {
        const { changes } = await (await fetch("/changes")).json();
        if (seen !== null && (changes !== seen || document.querySelector("[data-age]"))) await refresh();
        seen = changes;
      } catch {
        // The server has stopped: the page stays as it is, and asks again.
      }
    }
    setTimeout(poll, Math.max(INTERVAL, 4 * (performance.now() - start))); // a large page refreshes less often
  };
  poll();
})();
