// Wide code and tables can be scrolled with the keyboard, and say what they are.
for (const box of document.querySelectorAll("pre > code, .md-typeset__scrollwrap, .scroll")) {
  const wide = () => {
    if (box.scrollWidth > box.clientWidth + 1) {
      box.tabIndex = 0;
      box.setAttribute("role", "region");
      if (!box.getAttribute("aria-label")) box.setAttribute("aria-label", box.matches("code") ? "Code" : "Table");
    }
  };
  wide();
  window.addEventListener("resize", wide);
}
