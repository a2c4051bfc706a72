/* The search runs in a worker, which browsers start from no file. Where the site is read from
   files, a frame that nobody sees takes the worker's place. */

if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    #ready;

    constructor(url) {
      super();
      this.#ready = new Promise((resolve) => {
        const frame = document.createElement("iframe");
        frame.hidden = true;
        frame.onload = () => {
          frame.onload = null;
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inside.document.createElement("script");
          script.onload = () => resolve(inside);
          script.src = url;
          inside.document.head.append(script);
        };
        document.body.append(frame);
      });
    }

    postMessage(data) {
      this.#ready.then((inside) => {
        inside.dispatchEvent(new inside.MessageEvent("message", { data }));
      });
    }
  };
}
