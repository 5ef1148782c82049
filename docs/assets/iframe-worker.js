// Browsers start no worker for a page that was opened from a file. There the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame = document.createElement("iframe")
    #ready

    constructor(url) {
      super()
      this.#frame.hidden = true
      document.documentElement.append(this.#frame)
      const inner = this.#frame.contentWindow
      const send = (target, data) => target.dispatchEvent(new MessageEvent("message", { data }))
      inner.postMessage = data => send(this, data)
      const load = address => new Promise((done, failed) => {
        const script = inner.document.createElement("script")
        Object.assign(script, { src: address, onload: done, onerror: failed })
        inner.document.head.append(script)
      })
      inner.importScripts = (...addresses) => addresses.reduce((before, each) => before.then(() => load(each)), Promise.resolve())
      this.#ready = load(url)
      this.postMessage = data => this.#ready.then(() => send(inner, data))
    }

    terminate() {
      this.#frame.remove()
    }
  }
}
