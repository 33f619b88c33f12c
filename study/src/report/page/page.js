// Puts the page together. What a report does not have is left out.

function start() {
  const page = document.getElementById("page");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let chosen = null;
  const theme = () => {
    const now = chosen || (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now;
    button.textContent = now === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", now === "dark" ? "Show in light colours" : "Show in dark colours");
  };
  theme();
  for (const part of [answer, batches, workers, iteration, memory, layers, fit, policies, origin]) {
    const made = part();
    if (made) page.append(made);
  }
  drawAll();
  button.addEventListener("click", () => {
    chosen = isDark() ? "light" : "dark";
    theme();
    repaint();
  });
  dark.addEventListener("change", () => {
    theme();
    repaint();
  });
  let width = page.clientWidth;
  new ResizeObserver(() => {
    if (printing || page.clientWidth === width) return;
    width = page.clientWidth;
    drawAll();
  }).observe(page);
  addEventListener("beforeprint", () => forPaper(true));
  addEventListener("afterprint", () => forPaper(false));
}

start();
