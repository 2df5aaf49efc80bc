// Keeps an open page as it is now: the server sends the parts that have changed. Without this the pages work, too.
"use strict";
(() => {
  const main = document.querySelector("main[data-version]"), told = document.getElementById("live");
  if (!main) return;
  let version = main.dataset.version, source = null, pause = 2000;

  const say = (words, kind) => { told.textContent = words; told.className = kind; };

  const atEnd = (one) => one.scrollTop + one.clientHeight >= one.scrollHeight - 2;
  for (const log of document.querySelectorAll(".log")) log.scrollTop = log.scrollHeight; // its newest line is seen

  // What the reader has opened, scrolled and focused stays so; a field that is being filled in stays as a whole.
  const replace = (id, html) => {
    const part = document.getElementById(id), at = document.activeElement;
    if (!part || (part.contains(at) && at.matches("input, select, textarea"))) return;
    const open = [...part.querySelectorAll("details[open]")].map((one) => one.id);
    const scrolled = [...part.querySelectorAll(".scroll, pre")].map((one) => [one.scrollLeft, one.scrollTop, atEnd(one)]);
    const href = part.contains(at) ? at.getAttribute("href") : null, summary = at.closest("summary")?.parentElement.id;
    part.innerHTML = html;
    for (const one of part.querySelectorAll("details")) if (open.includes(one.id)) one.open = true;
    part.querySelectorAll(".scroll, pre").forEach((one, i) => {
      const [left, top, end] = scrolled[i] || [0, 0, true];
      [one.scrollLeft, one.scrollTop] = [left, end && one.matches(".log") ? one.scrollHeight : top];
    });
    const again = [...part.querySelectorAll("a")].find((one) => href !== null && one.getAttribute("href") === href);
    (again || (summary && part.querySelector(`#${CSS.escape(summary)} > summary`)))?.focus({ preventScroll: true });
  };

  const follow = () => {
    if (source || document.hidden) return;
    const of = encodeURIComponent(location.pathname + location.search);
    source = new EventSource(`/live?of=${of}&version=${version}`);
    source.onopen = () => { say("live", "good"); pause = 2000; };
    source.onerror = () => {
      say("not live, trying again; if that lasts, reload this page", "bad");
      if (source?.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
      source = null; // it was refused: another coordinator takes over, or the session is over
      setTimeout(follow, pause);
      pause = Math.min(2 * pause, 60000);
    };
    source.addEventListener("parts", (event) => {
      version = event.lastEventId;
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
