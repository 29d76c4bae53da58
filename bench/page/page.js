// Shows the values of a chart at the pointer, or with the arrow keys. Without it the page lacks nothing else.
for (const chart of document.querySelectorAll(".chart")) {
  const data = JSON.parse(chart.querySelector("script").textContent);
  const plots = [...chart.querySelectorAll(".plot")];
  const outputs = [...chart.querySelectorAll(".strip")].map((strip) => [...strip.querySelectorAll("output")]);
  const count = data.strips[0][0].length;
  let at = -1;
  const show = (index) => {
    at = Math.max(-1, Math.min(count - 1, index));
    chart.classList.toggle("read", at >= 0);
    for (const plot of plots) {
      plot.querySelector(".cursor").style.left = `${(((at + 0.5) * data.step) / data.end) * 100}%`;
    }
    data.strips.forEach((lines, strip) =>
      lines.forEach((values, line) => {
        const value = values[at];
        outputs[strip][line].textContent = at < 0 ? "" : value === null || value === undefined ? "–" : value;
      }),
    );
    const time = chart.querySelector(".now");
    time.textContent = at < 0 ? "" : `${at * data.step} s`;
  };
  for (const plot of plots) {
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      show(Math.floor((((event.clientX - box.left) / box.width) * data.end) / data.step));
    });
    plot.addEventListener("pointerleave", () => show(-1));
  }
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      event.preventDefault();
      show(Math.max(0, at + step));
    } else if (event.key === "Escape") {
      show(-1);
    }
  });
  chart.addEventListener("blur", () => show(-1));
}
