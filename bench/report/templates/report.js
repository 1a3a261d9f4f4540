"use strict";
// Each table: a click on a heading sorts it, words in the field above leave the rows that have all.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  if (rows.length < 2) continue;
  const heads = [...table.tHead.rows[0].cells];
  const compare = (column, isText, sign) => (one, other) => {
    const a = one.cells[column], b = other.cells[column];
    if (isText) return sign * a.textContent.localeCompare(b.textContent, "en", {numeric: true});
    if (a.dataset.key === "" || b.dataset.key === "") {
      return (a.dataset.key === "") - (b.dataset.key === ""); // what is no figure stays last
    }
    return sign * (Number(a.dataset.key) - Number(b.dataset.key));
  };
  heads.forEach((head, column) => {
    const isText = head.classList.contains("text");
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const next = now === null ? "ascending" : now === "ascending" ? "descending" : null;
      for (const other of heads) other.removeAttribute("aria-sort");
      if (next !== null) head.setAttribute("aria-sort", next);
      const sign = next === "descending" ? -1 : 1;
      body.append(...(next === null ? rows : [...rows].sort(compare(column, isText, sign))));
    });
  });
  if (rows.length < 4) continue;
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const bar = document.createElement("div");
  bar.className = "filter";
  const label = document.createElement("label");
  const field = document.createElement("input");
  const count = document.createElement("output");
  field.type = "search";
  field.placeholder = "such as: ddp exact";
  label.append("Filter rows", field);
  bar.append(label, count);
  table.closest(".table").prepend(bar);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !words.every((word) => texts.get(row).includes(word));
      if (!row.hidden) shown += 1;
    }
    count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
  });
}
