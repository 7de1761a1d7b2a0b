// Starts Swagger UI. A file of its own, because the page's Content-Security-Policy takes no inline script.
"use strict";

// The forms are filled in with examples. So a write can be sent from here only to the paths that the page names, the
// demo's; reads from everywhere.
const WRITES = document.getElementById("swagger-ui").dataset.writes.split(" ").filter(Boolean);

function mayBeSent(path, method) {
  return method === "get" || WRITES.some((prefix) => path === prefix || path.startsWith(`${prefix}/`));
}

const ReadsOnly = () => ({
  statePlugins: {
    spec: { wrapSelectors: { allowTryItOutFor: () => (_state, path, method) => mayBeSent(path, method) } },
  },
});

// Where the gateway has authentication, the page has a form for the token. It is kept in this variable only, and sent to
// this gateway only.
let token = "";

function withToken(request) {
  const own = new URL(request.url, window.location.href).origin === window.location.origin;
  if (token && own) request.headers.Authorization = `Bearer ${token}`;
  return request;
}

function start() {
  window.ui = SwaggerUIBundle({
    url: "openapi.json",
    dom_id: "#swagger-ui",
    layout: "BaseLayout",
    plugins: [ReadsOnly],
    requestInterceptor: withToken,
    deepLinking: true,
    docExpansion: "list",
    filter: true,
    tryItOutEnabled: true,
    displayRequestDuration: true,
    defaultModelsExpandDepth: 0,
    defaultModelExpandDepth: 2,
    syntaxHighlight: { activated: true, theme: "agate" },
    // The public validator would get the address of this gateway.
    validatorUrl: null,
  });
}

const form = document.getElementById("token");
if (form) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    token = form.querySelector("input").value.trim();
    start();
  });
} else {
  start();
}
