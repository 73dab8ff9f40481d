// Browsers start no worker from files. Search then runs in an empty frame of the page instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "Search";
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => setTimeout(() => this.tell(this, data));
      this.loaded = this.load(url);
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = reject;
        this.inside.document.head.appendChild(script);
      });
    }

    tell(whom, data) {
      whom.dispatchEvent(new MessageEvent("message", { data }));
    }

    postMessage(data) {
      this.loaded.then(() => this.tell(this.inside, data));
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
