// Wide code, tables and formulas can be scrolled with the keyboard, and say what they are.
const NAMES = { CODE: "Code", DIV: "Table" };
const label = () => {
  for (const box of document.querySelectorAll("pre > code, .md-typeset__scrollwrap, .scroll, .formula")) {
    if (box.scrollWidth <= box.clientWidth + 1) continue;
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    if (!box.getAttribute("aria-label")) box.setAttribute("aria-label", box.matches(".formula") ? "Formula" : NAMES[box.tagName]);
  }
  // What the theme leaves without a name, or names as a part of the page that it is not.
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const box of document.querySelectorAll(".md-code__nav, .md-nav .md-nav")) box.setAttribute("role", "group");
};
label();
window.addEventListener("load", () => setTimeout(label, 100));
window.addEventListener("resize", label);
