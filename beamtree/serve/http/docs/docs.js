// The routes of the service that this page came from. A token is kept until the browser is closed, as on the page at /.
"use strict";
(async () => {
  const byId = (id) => document.getElementById(id), token = sessionStorage.getItem("token");
  const headers = token && /^[\x20-\xff]+$/.test(token) ? { authorization: `Bearer ${token}` } : {};
  const response = await fetch("openapi.json", { headers });
  if (response.status === 401) {
    byId("ask").hidden = false;
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      sessionStorage.setItem("token", byId("token").value);
      location.reload();
    });
    byId("token").focus();
  } else if (response.ok) {
    const ui = SwaggerUIBundle({
      spec: await response.json(), domNode: byId("routes"), deepLinking: true, tryItOutEnabled: true,
      displayRequestDuration: true, validatorUrl: null,
      onComplete: () => { if (token) ui.preauthorizeApiKey("token", token); },
    });
  } else {
    byId("error").textContent = `openapi.json answered ${response.status}`;
    byId("error").hidden = false;
  }
  document.documentElement.dataset.ready = "";
})();
