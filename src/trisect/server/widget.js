// Widget: the bench in a notebook: questions go to the kernel, one at a time; of those that wait the newest alone is sent, and saves before it.
export default {
  render({ model, el }) {
    const about = JSON.parse(model.get("about"));
    const host = make("div");
    el.append(host);
    const client = ownName(); // what the kernel sends reaches every view of the widget
    const saves = [];
    let sequence = 0;
    let running = null;
    let next = null;

    function send() {
      if (running || !(saves.length || next)) return;
      running = saves.shift();
      if (!running) [running, next] = [next, null];
      model.send({ client, sequence: running.sequence, has: running.has, state: sent(running.state), page: running.page });
    }

    function ask(state, has) {
      return new Promise((done) => {
        next?.done(null);
        next = { sequence: ++sequence, state, has, page: false, done };
        send();
      });
    }

    function save(state) {
      return new Promise((done) => {
        saves.push({ sequence: ++sequence, state, has: "", page: true, done });
        send();
      });
    }

    function answered(content, buffers) {
      if (content.client !== client || content.sequence !== running?.sequence) return;
      const { done } = running;
      running = null;
      const chunks = (buffers || []).map((view) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength));
      done(content.error ? { error: content.error } : { words: content.words, page: content.page, chunks });
      send();
    }

    model.on("msg:custom", answered);
    const bench = new Bench(host, about, {
      ask,
      save,
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
