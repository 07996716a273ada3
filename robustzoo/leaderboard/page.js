"use strict";
// Sorting and filtering of the one table of a page. Without this script the page shows everything, by rank.
(function () {
  var table = document.querySelector("table.sortable");
  if (!table) return;
  var body = table.tBodies[0];
  var heads = Array.prototype.slice.call(table.tHead.rows[0].cells);
  var rows = Array.prototype.slice.call(body.rows);
  var form = document.querySelector("form");
  var count = document.getElementById("count");
  var points = {};
  document.querySelectorAll("[data-point]").forEach(function (point) {
    (points[point.dataset.point] = points[point.dataset.point] || []).push(point);
  });

  function value(row, column) {
    var cell = row.cells[column];
    var text = "sort" in cell.dataset ? cell.dataset.sort : cell.textContent.trim();
    return text === "" ? null : isNaN(text) ? text.toLowerCase() : Number(text);
  }

  function sort(column) {
    var head = heads[column];
    var numeric = head.classList.contains("number");
    var now = head.getAttribute("aria-sort");
    var down = now === "none" ? numeric : now === "ascending";
    var keyed = rows.map(function (row) { return [value(row, column), row]; });
    keyed.sort(function (a, b) {
      if (a[0] === null || b[0] === null) return (a[0] === null) - (b[0] === null);
      var order = a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0;
      return down ? -order : order;
    });
    rows = keyed.map(function (pair) { return pair[1]; });
    var all = document.createDocumentFragment();
    rows.forEach(function (row) { all.appendChild(row); });
    body.appendChild(all);
    heads.forEach(function (other) { if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  }

  function filter() {
    var wanted = [], words = [];
    Array.prototype.forEach.call(form.elements, function (field) {
      if (field.tagName === "SELECT" && field.value) wanted.push([field.name, field.value]);
      if (field.type === "search") words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    });
    var shown = 0;
    rows.forEach(function (row) {
      var text = row.textContent.toLowerCase();
      var fits = wanted.every(function (pair) { return row.getAttribute("data-" + pair[0]) === pair[1]; }) &&
        words.every(function (word) { return text.indexOf(word) >= 0; });
      row.hidden = !fits;
      shown += fits;
      (points[row.id] || []).forEach(function (part) {
        if (fits) part.removeAttribute("hidden"); else part.setAttribute("hidden", "");
      });
    });
    count.textContent = shown + " of " + rows.length;
  }

  heads.forEach(function (head, column) {
    var button = head.querySelector("button");
    if (button) button.addEventListener("click", function () { sort(column); });
  });
  form.addEventListener("input", filter);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  form.hidden = false;
  filter();  // a browser keeps what was chosen when a page is opened again
})();
