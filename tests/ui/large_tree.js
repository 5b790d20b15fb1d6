// Shows a made-up tree of 100,000 nodes, pans over it at three zooms, and gives the script time of each frame.
async () => {
  const count = 100000;
  const columns = { above: [-1], page: [-1], namespace: [0], start: [0], tokens: [0], total: [0], nodes: [1], held: [0], hits: [0], age_ms: [0], victim: [-1], digest: ["0"] };
  let seed = 7;
  const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
  for (let i = 1; i < count; i++) {
    const above = i < 60 ? 0 : Math.floor(random() ** 2 * Math.min(i, 40000));
    const tokens = 16 * (1 + Math.floor(random() * 40));
    const row = [above, i, -1, 0, tokens, tokens, 1, random() < 0.01 ? 16 : 0, Math.floor(random() ** 4 * 200), random() ** 3 * 3.6e6, i % 997 ? -1 : i % 64, String(i)];
    Object.keys(columns).forEach((name, k) => columns[name].push(row[k]));
  }
  for (let i = count - 1; i > 0; i--) columns.total[columns.above[i]] += columns.total[i];
  const { icicle, Outline } = axilView;
  const outline = new Outline({ nodes: columns, namespaces: [{}], num_nodes: count });
  const show = icicle.show;
  icicle.show = () => {}; // what the server sends meanwhile must not take its place
  show.call(icicle, outline);
  const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  await frame();
  const frames = [];
  for (const width of [1, 0.1, 0.005]) {
    icicle.view = { x0: 0.3 * (1 - width), x1: 0.3 * (1 - width) + width, y: 0 };
    for (let i = 0; i < 40; i++) {
      const before = icicle.frames.length;
      icicle.pan(i < 20 ? -11 : 11, i % 7 - 3);
      await frame();
      if (icicle.frames.length > before) frames.push(icicle.frames[icicle.frames.length - 1]);
    }
  }
  icicle.show = show;
  return { count: outline.count, rows: outline.rows.length, frames };
}
