// Widget: the explorer in a notebook; bytes come from the kernel once and stay.
export default {
  render({ model, el }) {
    const manifest = JSON.parse(model.get("manifest"));
    const data = model.get("data");
    const [bytes, from] = data instanceof DataView ? [data.buffer, data.byteOffset] : [data, 0];
    const starts = JSON.parse(model.get("starts"));
    const chunk = async (n) => new Uint8Array(bytes, from + starts[n], starts[n + 1] - starts[n]);
    const host = make("div");
    el.append(host);
    const { stop } = mount(host, manifest, chunk);
    return stop;
  },
};
