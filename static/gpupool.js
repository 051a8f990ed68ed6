// What pages do beyond htmx. Every page works without this file.
(() => {
  // A hidden page asks for nothing; it asks at once when it is seen again.
  document.addEventListener("htmx:before:request", (event) => {
    const source = event.detail.ctx.sourceElement;
    if (document.hidden && source && source.matches("[data-live]")) event.preventDefault();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    document.querySelectorAll("[data-live][hx-get]").forEach((part) => part.dispatchEvent(new CustomEvent("seen")));
  });

  // One notice for every request that failed; it goes when one succeeds.
  const lost = () => document.getElementById("connection-lost");
  const fail = () => lost()?.removeAttribute("hidden");
  document.addEventListener("htmx:response:error", (event) => {
    if (event.detail.ctx.response.status !== 401) fail();
  });
  document.addEventListener("htmx:error", fail);
  document.addEventListener("htmx:after:request", (event) => {
    if (event.detail.ctx.response.status < 400) lost()?.setAttribute("hidden", "");
  });

  // Changes of a state are spoken once, from one region, whichever part was renewed.
  const spoken = new Map();
  const speak = () => {
    document.querySelectorAll("[data-speak]").forEach((element) => {
      const key = element.id;
      const text = element.dataset.speak;
      if (spoken.has(key) && spoken.get(key) !== text) document.getElementById("spoken").textContent = text;
      spoken.set(key, text);
    });
  };
  document.addEventListener("DOMContentLoaded", speak);
  document.addEventListener("htmx:after:swap", speak);

  // Copy buttons.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = document.getElementById(button.dataset.copy)?.textContent ?? "";
    try {
      await navigator.clipboard.writeText(text.trim());
    } catch {
      return;
    }
    const label = button.querySelector("[data-copied]");
    if (!label) return;
    const before = label.textContent;
    label.textContent = label.dataset.copied;
    setTimeout(() => (label.textContent = before), 1500);
  });

  // Menus close on Escape and on a click elsewhere.
  const closeMenus = (except) =>
    document.querySelectorAll("details.menu[open]").forEach((menu) => {
      if (menu !== except) menu.removeAttribute("open");
    });
  document.addEventListener("click", (event) => closeMenus(event.target.closest("details.menu")));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const menu = event.target.closest?.("details.menu[open]");
    closeMenus();
    menu?.querySelector("summary")?.focus();
  });

  // A form is sent once; the server would recognise the second by its key anyway.
  document.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (event.target.method !== "post" || !button || event.target.hasAttribute("hx-post")) return;
    setTimeout(() => button.setAttribute("disabled", ""));
  });
  addEventListener("pageshow", () =>
    document.querySelectorAll("button[disabled]:not([data-off])").forEach((b) => b.removeAttribute("disabled")),
  );
})();
