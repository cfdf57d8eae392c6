"use strict";
// Lists: a range dragged over a histogram, and filters that this browser keeps under a name. The pages work without it.
(() => {
  const go = (changes) => {
    const address = new URL(location.href);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null) address.searchParams.delete(name);
      else address.searchParams.set(name, value);
    }
    location.assign(address);
  };

  let drag = null;
  const place = (svg, event) => {
    const box = svg.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  };
  document.addEventListener("pointerdown", (event) => {
    const svg = event.target.closest("svg[data-since]");
    if (svg && event.button === 0) drag = { svg, from: place(svg, event), to: place(svg, event), rect: null };
  });
  document.addEventListener("pointermove", (event) => {
    if (!drag) return;
    drag.to = place(drag.svg, event);
    const { width, height } = drag.svg.viewBox.baseVal;
    if (!drag.rect && Math.abs(drag.to - drag.from) < 0.005) return;
    if (!drag.rect) {
      drag.rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      drag.rect.setAttribute("class", "picked");
      drag.rect.setAttribute("height", height);
      drag.svg.append(drag.rect);
    }
    drag.rect.setAttribute("x", Math.min(drag.from, drag.to) * width);
    drag.rect.setAttribute("width", Math.abs(drag.to - drag.from) * width);
    event.preventDefault();
  });
  document.addEventListener("dragstart", (event) => { if (drag) event.preventDefault(); });
  document.addEventListener("click", (event) => { // a drag that ends on a bar is no click on it
    if (event.target.closest("svg[data-dragged]")) event.preventDefault();
  }, true);
  document.addEventListener("pointerup", () => {
    if (!drag) return;
    const { svg, rect, from, to } = drag;
    drag = null;
    if (!rect || !svg.isConnected) return; // a live page may have replaced it
    svg.dataset.dragged = "";
    const first = Number(svg.dataset.since);
    const at = (share) => `${Math.round(first + share * (Number(svg.dataset.until) - first))}000000`; // ms to ns
    go({ since: at(Math.min(from, to)), until: at(Math.max(from, to)), range: null, before: null, page: null });
  });

  const ago = (seconds) => {
    for (const [unit, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
      if (seconds >= 2 * unit) return `${Math.floor(seconds / unit)} ${name} ago`;
    }
    return `${Math.max(0, Math.floor(seconds))} s ago`;
  };
  setInterval(() => {
    for (const time of document.querySelectorAll("time[data-start]")) time.textContent = ago(Date.now() / 1000 - time.dataset.start);
  }, 10_000);

  const KEY = "pellucid.filters";
  const read = () => {
    try {
      const found = JSON.parse(localStorage.getItem(KEY));
      return Array.isArray(found) ? found.filter((item) => typeof item?.name === "string" && typeof item?.query === "string") : [];
    } catch {
      return [];
    }
  };
  const saved = document.querySelector("[data-saved]");
  const element = (tag, text, onclick) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (onclick) made.addEventListener("click", onclick);
    return made;
  };
  const write = (filters) => {
    localStorage.setItem(KEY, JSON.stringify(filters.slice(-50)));
    show();
  };
  const show = () => {
    const filters = read();
    saved.replaceChildren(...filters.flatMap(({ name, query }, index) => {
      const link = element("a", name);
      link.href = `/runs?${new URLSearchParams(query)}`;
      const remove = element("button", "×", () => write(filters.filter((_, other) => other !== index)));
      remove.type = "button";
      remove.setAttribute("aria-label", `Remove the saved filter ${name}`);
      return [link, remove];
    }));
    if (location.search.length < 2 || "kept" in saved.dataset) return;
    const given = document.createElement("input");
    given.setAttribute("aria-label", "Name under which this browser keeps the filter");
    given.placeholder = "name";
    given.maxLength = 60;
    const keep = () => {
      const name = given.value.trim() || location.search.slice(1, 60);
      write([...filters.filter((item) => item.name !== name), { name, query: location.search.slice(1) }]);
    };
    given.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      keep();
    });
    const save = element("button", "Save filter", keep);
    save.type = "button";
    saved.append(given, save);
  };
  if (saved) show();
})();
