// Keeps an open page as it is now: the server sends the parts that have changed. Without this the pages work, too.
"use strict";
(() => {
  const main = document.querySelector("main[data-version]"), told = document.getElementById("live");
  if (!main) return;
  let version = main.dataset.version, source = null, pause = 2000;

  const say = (words, kind) => { told.textContent = words; told.className = kind; };

  // Nobody takes a page for the present that is not: it turns grey, and a line above it says since when.
  const gone = document.getElementById("gone"), GRACE = 4000;
  let heard = new Date(), late = null;
  const lost = () => {
    gone.textContent = `The coordinator does not answer: this is how things stood at ${heard.toLocaleTimeString()}.`;
    gone.hidden = false;
    document.body.classList.add("gone");
  };
  const back = () => {
    heard = new Date();
    clearTimeout(late);
    late = null;
    gone.hidden = true;
    document.body.classList.remove("gone");
  };

  const atEnd = (one) => one.scrollTop + one.clientHeight >= one.scrollHeight - 2;
  const search = document.getElementById("log-search"), follows = document.getElementById("log-follow");
  // The whole text stays in the element's `whole`; shown are the lines that hold what is searched for.
  const showLog = () => {
    const log = document.querySelector(".log");
    if (!log || !search) return;
    log.whole ??= log.textContent;
    const sought = search.value.toLowerCase(), lines = log.whole.split("\n");
    const found = sought ? lines.filter((line) => line.toLowerCase().includes(sought)) : lines;
    log.textContent = found.join("\n");
    document.getElementById("log-found").textContent = sought ? `${found.length} of the last ${lines.length} lines` : "";
    if (follows.checked) log.scrollTop = log.scrollHeight;
  };
  search?.addEventListener("input", showLog);
  search?.form.addEventListener("submit", (event) => event.preventDefault());
  follows?.addEventListener("change", showLog);
  main.addEventListener("scroll", (event) => { // who scrolls back reads on undisturbed
    if (event.target.matches?.(".log")) follows.checked = atEnd(event.target);
  }, true);
  showLog(); // its newest line is seen

  // Where a picture is wider than the screen, the names of its rows stay in sight.
  const holdNames = (part) => {
    const names = part.querySelector(".names");
    names?.setAttribute("transform", `translate(${((1000 * part.scrollLeft) / part.scrollWidth).toFixed(1)} 0)`);
  };
  main.addEventListener("scroll", (event) => { if (event.target.matches?.(".scroll")) holdNames(event.target); }, true);
  for (const part of document.querySelectorAll(".scroll")) { // on a phone the present is seen first
    const now = part.querySelector(".now line")?.x1.baseVal.value;
    if (now !== undefined) part.scrollLeft = (now / 1000) * part.scrollWidth - part.clientWidth / 2;
    holdNames(part);
  }

  // A table is sorted by the column whose head was pressed; what is sent later, too.
  let sorted = null; // column, and 1 or -1
  const key = (row, at) => row.cells[at].dataset.key ?? row.cells[at].textContent;
  const compare = (a, b) => a - b || String(a).localeCompare(String(b), undefined, { numeric: true });
  const sort = () => {
    const table = document.querySelector("table.jobs");
    if (!table || !sorted) return;
    const [at, way] = sorted, body = table.tBodies[0];
    body.append(...[...body.rows].sort((a, b) => way * compare(key(a, at), key(b, at))));
    [...table.tHead.rows[0].cells].forEach((head, i) => {
      if (i === at) head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
  };
  main.addEventListener("click", (event) => {
    const head = event.target.closest?.(".sort")?.closest("th");
    if (!head) return;
    sorted = [head.cellIndex, sorted?.[0] === head.cellIndex ? -sorted[1] : 1];
    sort();
  });

  // Jobs are found while their name is typed.
  let typing = null, asked = 0;
  main.addEventListener("input", (event) => {
    const field = event.target;
    if (!field.matches(".find [name=named]")) return;
    clearTimeout(typing);
    typing = setTimeout(async () => {
      const address = `/jobs?${new URLSearchParams(new FormData(field.form))}`, mine = ++asked;
      const answer = await fetch(address);
      if (!answer.ok || mine !== asked) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      history.replaceState(null, "", address);
      document.getElementById("jobs").innerHTML = page.getElementById("jobs").innerHTML;
      document.querySelector("nav.groups").replaceWith(page.querySelector("nav.groups"));
      version = page.querySelector("main").dataset.version;
      sort();
      source?.close();
      source = null;
      follow();
    }, 200);
  });

  // A stretch of the timeline that is drawn over with the mouse is shown alone.
  let drawn = null; // the picture, its new rectangle, and where that begins
  const place = (picture, event) => {
    const box = picture.getBoundingClientRect(), x = (1000 * (event.clientX - box.left)) / box.width;
    return Math.min(1000, Math.max(Number(picture.dataset.left), x));
  };
  const stretch = (event) => {
    const at = place(drawn.picture, event), ends = [drawn.x, at].sort((a, b) => a - b);
    drawn.area.setAttribute("x", ends[0]);
    drawn.area.setAttribute("width", ends[1] - ends[0]);
    return ends;
  };
  const letGo = () => { drawn?.area.remove(); drawn = null; };
  main.addEventListener("pointerdown", (event) => {
    const picture = event.target.closest?.("svg[data-from]");
    if (!picture || event.pointerType === "touch" || event.button !== 0) return; // a finger scrolls
    event.preventDefault();
    letGo();
    const area = document.createElementNS(picture.namespaceURI, "rect");
    area.setAttribute("class", "zoom");
    area.setAttribute("y", 14);
    area.setAttribute("height", picture.viewBox.baseVal.height - 34);
    picture.append(area);
    drawn = { picture, area, x: place(picture, event) };
    stretch(event);
  });
  addEventListener("pointermove", (event) => { if (drawn) stretch(event); });
  addEventListener("pointerup", (event) => {
    if (!drawn) return;
    const ends = stretch(event), { left, from, until } = drawn.picture.dataset;
    const time = (x) => Math.round(Number(from) + ((x - left) / (1000 - left)) * (until - from));
    letGo();
    if (ends[1] - ends[0] < 8) return; // it was a click
    const asked = new URLSearchParams(location.search);
    asked.delete("last");
    asked.set("from", time(ends[0]));
    asked.set("until", Math.max(time(ends[1]), time(ends[0]) + 10));
    location.search = asked;
  });
  addEventListener("keydown", (event) => { if (event.key === "Escape") letGo(); });

  // The coordinator writes times in the zone that this cookie names.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "";
  document.cookie = `reshape-zone=${zone}; path=/; max-age=31536000; samesite=strict`;

  // What the reader has opened, scrolled and focused stays so; a field that is being filled in stays as a whole.
  const replace = (id, html) => {
    const part = document.getElementById(id), at = document.activeElement;
    if (!part || part.contains(drawn?.picture) || (part.contains(at) && at.matches("input, select, textarea"))) return;
    const open = [...part.querySelectorAll("details[open]")].map((one) => one.id);
    const scrolled = [...part.querySelectorAll(".scroll, pre")].map((one) => [one.scrollLeft, one.scrollTop, atEnd(one)]);
    const href = part.contains(at) ? at.getAttribute("href") : null, summary = at.closest("summary")?.parentElement.id;
    part.innerHTML = html;
    if (id === "jobs") sort();
    for (const one of part.querySelectorAll("details")) if (open.includes(one.id)) one.open = true;
    part.querySelectorAll(".scroll, pre").forEach((one, i) => {
      const [left, top, end] = scrolled[i] || [0, 0, true];
      [one.scrollLeft, one.scrollTop] = [left, end && one.matches(".log") ? one.scrollHeight : top];
      holdNames(one);
    });
    if (id === "log") showLog();
    const again = [...part.querySelectorAll("a")].find((one) => href !== null && one.getAttribute("href") === href);
    (again || (summary && part.querySelector(`#${CSS.escape(summary)} > summary`)))?.focus({ preventScroll: true });
  };

  const follow = () => {
    if (source || document.hidden) return;
    const of = encodeURIComponent(location.pathname + location.search);
    source = new EventSource(`/live?of=${of}&version=${version}`);
    source.onopen = () => { say("live", "good"); pause = 2000; back(); };
    source.onerror = () => {
      say("not live, trying again", "bad");
      if (late === null) [heard, late] = [new Date(), setTimeout(lost, GRACE)];
      if (source?.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
      source = null; // it was refused: another coordinator takes over, or the session is over
      setTimeout(follow, pause);
      pause = Math.min(2 * pause, 60000);
    };
    source.addEventListener("parts", (event) => {
      version = event.lastEventId;
      back();
      for (const [id, html] of Object.entries(JSON.parse(event.data))) replace(id, html);
    });
  };

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { source?.close(); source = null; } else follow();
  });
  addEventListener("pagehide", () => { source?.close(); source = null; });
  addEventListener("pageshow", follow);
  follow();
})();
