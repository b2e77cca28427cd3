/** The address after `#`: which view, of what, with which parameters. Pure. */

/** @typedef {{view: string, subject: string, params: URLSearchParams}} Route */

/** @param {string} hash @returns {Route} */
export function parseRoute(hash) {
  const [path, query = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const [view = "", ...rest] = path.split("/");
  return { view, subject: decoded(rest.join("/")), params: new URLSearchParams(query) };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** @param {string} view @param {string} [subject] @param {Record<string, string>} [params] */
export function href(view, subject = "", params = {}) {
  const query = new URLSearchParams(params).toString();
  const tail = subject ? `/${encodeURIComponent(subject).replaceAll("%3A", ":")}` : "";
  return `#/${view}${tail}${query ? `?${query}` : ""}`;
}
