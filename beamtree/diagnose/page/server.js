// Requests to the server that the page came from, and the token that it may require.

async function fetchJson(path, body) {
  const headers = { ...(body && { "content-type": "application/json" }), ...token() };
  const options = { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) };
  const response = await fetch(path, options);
  const content = await response.json().catch(() => ({}));
  if (response.ok) return content;
  const message = content.error ?? `${path} answered ${response.status}`;
  const error = new Error([message, content.hint].filter(Boolean).join(": "));
  error.status = response.status;
  throw error;
}
function token() {
  const value = sessionStorage.getItem("token");
  return value && /^[\x20-\xff]+$/.test(value) ? { authorization: `Bearer ${value}` } : {}; // others cannot be sent
}
function askToken() { // kept until the browser is closed, and sent to this server alone
  const field = h("input", { type: "password", id: "token", "aria-label": "Token", autocomplete: "off" });
  const keep = (event) => { event.preventDefault(); sessionStorage.setItem("token", field.value); location.reload(); };
  fill($("finder"), h("form", { onsubmit: keep }, h("p", {}, "This server requires a token."), field));
  $("finder").showModal();
}

function showError(error) {
  if (error.status === 401) return askToken();
  $("error").hidden = false;
  $("error").textContent = clean(String(error.message ?? error)).slice(0, 400);
}
