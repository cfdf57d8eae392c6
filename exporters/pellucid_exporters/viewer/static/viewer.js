"use strict";
// Keys (/ j k enter esc n p), two marked runs, live pages, copying, and a run's page that changes in place;
// everything else works without this script.
(() => {
  document.documentElement.classList.add("js");
  const INTERVAL = 1000;
  const rows = () => [...document.querySelectorAll("a.row, a.r, a.g, summary:not(form summary)")].filter((row) => row.checkVisibility());

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
    if (link) link.click();
    return link;
  };

  const KEYS = {
    j: () => move(1),
    k: () => move(-1),
    n: () => follow("a[rel=next]"),
    p: () => follow("a[rel=prev]"),
    "/": () => (document.querySelector(".filters input:not([type=hidden])") || document.querySelector(".find input")).focus(),
    Escape: () => {
      const isTyping = document.activeElement.matches("input");
      if (!isTyping && follow("a[rel=up]")) return;
      if (document.activeElement !== document.body) document.activeElement.blur();
      else {
        const up = document.querySelector("link[rel=up]");
        if (up) location.assign(up.href);
      }
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

  const load = async (address) => {
    const answer = await fetch(address);
    return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
  };

  const refresh = async () => {
    const page = await load(location.href);
    if (!page) return;
    const old = document.querySelector("[data-live]");
    const fresh = page.querySelector("[data-live]") || page.querySelector("main > div:last-of-type");
    const isWriting = old && old.querySelector("[name=comment]:focus"); // a comment on a run under way
    if (old && fresh && !isWriting && document.getSelection().isCollapsed) replace(old, document.adoptNode(fresh));
  };

  // A run's page: links to its other states and to its spans change the page in place, and the address with it.

  const run = () => document.querySelector("[data-soft]");

  const stateOf = (link) => {
    const url = new URL(link.href);
    const base = run().dataset.soft;
    if (url.pathname === base) return url.search || url.hash ? url : null;
    const found = url.pathname.match(/^(\/runs\/[^/]+\/)(\d+)$/);
    const nested = found && found[1] !== base;
    if (!found || url.hash || "page" in link.dataset) return null;
    const state = new URL(location.href);
    state.hash = "";
    state.searchParams.set("span", nested ? `${found[1].split("/")[2]}/${found[2]}` : found[2]);
    if (link.matches(".r")) state.searchParams.set("row", document.querySelector(".waterfall").dataset.row);
    else state.searchParams.delete("row");
    return state;
  };

  let latest = null;
  const change = async (state, isNew) => {
    latest = state;
    const page = await load(state.href);
    const fresh = page && page.querySelector("[data-soft]");
    if (latest !== state) return;
    if (!fresh) return location.assign(state.href);
    if (isNew) history.pushState(null, "", state.href);
    const side = document.querySelector("[data-scroll]");
    const before = [side.dataset.scroll, side.scrollTop];
    replace(run(), document.adoptNode(fresh));
    const after = document.querySelector("[data-scroll]");
    if (after.dataset.scroll === before[0]) after.scrollTop = before[1];
    const selected = document.querySelector(".r.on");
    if (selected && document.activeElement === document.body) selected.scrollIntoView({ block: "nearest" });
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    const isPlain = !event.button && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
    if (!isPlain || !link || link.target || !link.closest("[data-soft]")) return;
    const state = stateOf(link);
    if (!state) return;
    event.preventDefault();
    change(state, true);
  });
  window.addEventListener("popstate", () => {
    if (run()) change(new URL(location.href), false);
  });

  let start = null; // of a range that is dragged over the overview, as a share of the run's time
  const share = (event) => {
    const box = event.target.closest(".map").getBoundingClientRect();
    return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  };
  document.addEventListener("pointerdown", (event) => {
    start = event.target.closest(".map") ? share(event) : null;
  });
  document.addEventListener("dragstart", (event) => {
    if (event.target.closest && event.target.closest(".map")) event.preventDefault();
  });
  document.addEventListener("pointerup", (event) => {
    const map = event.target.closest(".map");
    if (start === null || !map) return;
    const [from, to] = [start, share(event)].sort((one, other) => one - other);
    if (to - from < 0.01) return; // a click, on a link
    const state = new URL(location.href);
    state.searchParams.delete("row");
    state.searchParams.set("from", (from * map.dataset.total).toFixed(6));
    state.searchParams.set("to", (to * map.dataset.total).toFixed(6));
    event.preventDefault();
    map.addEventListener("click", (click) => { click.preventDefault(); click.stopPropagation(); }, { capture: true, once: true });
    change(state, true);
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const label = button.textContent;
    try {
      const text = button.dataset.text || (await (await fetch(button.dataset.copy)).text());
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      button.textContent = "could not copy";
    }
    setTimeout(() => { button.textContent = label; }, 1500);
  });

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
