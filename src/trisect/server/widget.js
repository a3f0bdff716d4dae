// Widget: the bench in a notebook: questions go to the kernel, one at a time; of those that wait the newest alone is sent.
export default {
  render({ model, el }) {
    const about = JSON.parse(model.get("about"));
    const host = make("div");
    el.append(host);
    let sequence = 0;
    let running = null;
    let next = null;

    function send() {
      if (running || !next) return;
      [running, next] = [next, null];
      model.send({ client: "notebook", sequence: running.sequence, has: running.has, state: sent(running.state), page: running.page });
    }

    function put(state, has, page) {
      return new Promise((done) => {
        next?.done(null);
        next = { sequence: ++sequence, state, has, page, done };
        send();
      });
    }

    function answered(content, buffers) {
      if (content.sequence !== running?.sequence) return;
      const { done } = running;
      running = null;
      const chunks = (buffers || []).map((view) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength));
      done(content.error ? { error: content.error } : { words: content.words, page: content.page, chunks });
      send();
    }

    model.on("msg:custom", answered);
    const bench = new Bench(host, about, {
      ask: (state, has) => put(state, has, false),
      save: async (state) => (await put(state, "", true))?.page ?? null,
      state: fromLink(model.get("state"), about.paired),
      keep: (state) => {
        model.set("state", toLink(state));
        model.save_changes();
      },
    });
    return () => {
      model.off("msg:custom", answered);
      bench.view?.stop();
    };
  },
};
