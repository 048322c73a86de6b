// The page is put together, and redrawn for a theme and for paper.

function useTheme(theme) {
  state.theme = theme;
  document.documentElement.dataset.theme = theme;
  by("theme").textContent = theme === "dark" ? "Light" : "Dark";
  by("theme").setAttribute("aria-pressed", String(theme === "dark"));
  readInk();
  tell("theme");
}

// The call of a workload that is shown; another one is another page of the same file.
function startCalls() {
  const choice = by("call-shown");
  by("calls").hidden = !content.calls;
  if (!content.calls) return;
  choice.replaceChildren(
    ...content.calls.map((call, at) => make("option", { value: String(at), text: call.model })),
  );
  choice.value = String(content.calls.indexOf(content.calls[callShown] ?? content.calls[0]));
  choice.addEventListener("change", () => {
    location.hash = `call=${choice.value}`;
    location.reload();
  });
}

function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chose = false;
  useTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => {
    if (!chose) useTheme(dark.matches ? "dark" : "light");
  });
  by("theme").addEventListener("click", () => {
    chose = true;
    useTheme(state.theme === "dark" ? "light" : "dark");
  });
  const choice = by("plan-shown");
  choice.replaceChildren(
    ...data.methods.flatMap((method, at) =>
      method.plan === null
        ? []
        : [
            make("option", {
              value: String(method.plan),
              text: method.name + (at === data.answer ? " ★" : ""),
            }),
          ],
    ),
  );
  choice.value = String(state.plan);
  choice.addEventListener("change", () => showPlan(Number(choice.value)));
  on("plan", () => {
    choice.value = String(state.plan);
  });
  startCalls();
  fitGutter();
  addEventListener("resize", () => {
    fitGutter();
    tell("size");
  });
  fitTime();
  const parts = [answer, methods, timeline, memory, graph, ops, chosen, search, learning, plans];
  for (const part of parts) part.start();
  let before = null;
  const draw = () => {
    const surfaces = [
      timeline.lanes,
      ...memory.charts.filter((each) => !each.place.hidden).map((each) => each.chart),
      graph,
      ...plans.charts.map((each) => each.lanes),
    ];
    for (const { surface } of surfaces) surface.now();
  };
  draw();
  addEventListener("beforeprint", () => {
    before = state.theme;
    useTheme("light");
    draw();
  });
  addEventListener("afterprint", () => {
    useTheme(before);
  });
  window.placewright = Object.freeze({
    data,
    state,
    timeline,
    memory,
    graph,
    ops,
    plans,
    draw,
    ready: performance.now(),
  });
}

start();
