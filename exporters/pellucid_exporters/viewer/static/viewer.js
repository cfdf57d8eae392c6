"use strict";
// Keys (/ j k enter esc) and live pages; everything works without this script.
(() => {
  const INTERVAL = 1000;
  const rows = () => [...document.querySelectorAll("a.row, a.r, summary")].filter((row) => row.offsetParent !== null);

  const move = (step) => {
    const all = rows();
    const at = all.indexOf(document.activeElement);
    const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1)];
    if (next) {
      next.focus();
      next.scrollIntoView({ block: "nearest" });
    }
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = event.target.matches("input:not([type=checkbox]), select, textarea");
    if (event.key === "Escape") {
      if (isTyping || document.activeElement !== document.body) document.activeElement.blur();
      else {
        const up = document.querySelector("link[rel=up]");
        if (up) location.assign(up.href);
      }
    } else if (isTyping) {
      return;
    } else if (event.key === "/") {
      event.preventDefault();
      (document.querySelector(".filters input") || document.querySelector(".find input")).focus();
    } else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
  });

  const keyOf = (details, index) => details.dataset.key || details.id || `#${index}`;

  const replace = (old, fresh) => {
    const open = new Map([...old.querySelectorAll("details")].map((item, index) => [keyOf(item, index), item.open]));
    const marked = new Set([...old.querySelectorAll("input:checked")].map((box) => box.value));
    const focused = document.activeElement && document.activeElement.getAttribute("href");
    fresh.querySelectorAll("details").forEach((item, index) => {
      if (open.has(keyOf(item, index))) item.open = open.get(keyOf(item, index));
    });
    fresh.querySelectorAll("input[type=checkbox]").forEach((box) => { box.checked = marked.has(box.value); });
    old.replaceWith(fresh);
    if (focused) {
      const same = [...fresh.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused);
      if (same) same.focus({ preventScroll: true });
    }
  };

  const refresh = async () => {
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const old = document.querySelector("[data-live]");
    const fresh = page.querySelector("main > div:last-of-type");
    if (old && fresh) replace(old, document.adoptNode(fresh));
  };

  let seen = null;
  const poll = async () => {
    if (!document.querySelector("[data-live]")) return;
    if (!document.hidden) {
      try {
        const { changes } = await (await fetch("/changes")).json();
        if (seen !== null && changes !== seen) await refresh();
        seen = changes;
      } catch {
        // The server has stopped: the page stays as it is, and asks again.
      }
    }
    setTimeout(poll, INTERVAL);
  };
  poll();
})();
