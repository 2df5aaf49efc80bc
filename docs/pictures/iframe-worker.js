// The site's search runs in a worker, which browsers refuse to pages that are opened from a folder. There it runs in a
// hidden frame of the page instead, which sends and gets the same messages.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.begun = new Promise((resolve, reject) => {
        const script = this.inner.document.createElement("script");
        script.src = new URL(address, location);
        script.onload = resolve;
        script.onerror = reject;
        this.inner.document.body.append(script);
      });
    }

    postMessage(data) {
      this.begun.then(() => this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data })));
    }
  };
}
