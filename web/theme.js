// Sets the remembered theme before the first paint. A classic script, because modules run too late for that;
// parts/header.js writes the same key.
try {
  document.documentElement.dataset.theme = localStorage.getItem("loms.theme") || "auto";
} catch {
  document.documentElement.dataset.theme = "auto";
}
