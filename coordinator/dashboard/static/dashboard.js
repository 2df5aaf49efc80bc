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

  for (const part of document.querySelectorAll(".scroll")) { // on a phone the present is seen first
    const now = part.querySelector(".now line")?.x1.baseVal.value;
    if (now !== undefined) part.scrollLeft = (now / 1000) * part.scrollWidth - part.clientWidth / 2;
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

  // Times of what happened are shown in the reader's zone; those within sentences stay the coordinator's.
  const zone = -new Date().getTimezoneOffset(), theirs = Number(main.dataset.zone), two = (n) => String(n).padStart(2, "0");
  const showTimes = (part) => {
    if (zone === theirs) return;
    for (const one of part.querySelectorAll("time[data-at]")) {
      const at = new Date(1000 * one.dataset.at), day = [at.getFullYear(), two(at.getMonth() + 1), two(at.getDate())].join("-");
      const clock = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
      one.textContent = one.matches(".clock") ? clock : `${day} ${clock}`;
    }
  };
  showTimes(main);

  // What the reader has opened, scrolled and focused stays so; a field that is being filled in stays as a whole.
  const replace = (id, html) => {
    const part = document.getElementById(id), at = document.activeElement;
    if (!part || (part.contains(at) && at.matches("input, select, textarea"))) return;
    const open = [...part.querySelectorAll("details[open]")].map((one) => one.id);
    const scrolled = [...part.querySelectorAll(".scroll, pre")].map((one) => [one.scrollLeft, one.scrollTop, atEnd(one)]);
    const href = part.contains(at) ? at.getAttribute("href") : null, summary = at.closest("summary")?.parentElement.id;
    part.innerHTML = html;
    showTimes(part);
    if (id === "jobs") sort();
    for (const one of part.querySelectorAll("details")) if (open.includes(one.id)) one.open = true;
    part.querySelectorAll(".scroll, pre").forEach((one, i) => {
      const [left, top, end] = scrolled[i] || [0, 0, true];
      [one.scrollLeft, one.scrollTop] = [left, end && one.matches(".log") ? one.scrollHeight : top];
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
  if (zone !== theirs) {
    const hours = `${theirs < 0 ? "-" : "+"}${Math.floor(Math.abs(theirs) / 60)}:${String(Math.abs(theirs) % 60).padStart(2, "0")}`;
    document.getElementById("zone").textContent = `times in sentences are the coordinator's, UTC${hours}`;
  }
  addEventListener("pagehide", () => { source?.close(); source = null; });
  addEventListener("pageshow", follow);
  follow();
})();
