// Starts Swagger UI. A file of its own, because the page's Content-Security-Policy takes no inline script.
"use strict";

// The forms are filled in with examples. So a write can be sent from here only to the paths that the page names, the
// demo's; reads from everywhere.
const PAGE = document.getElementById("swagger-ui").dataset;
const WRITES = PAGE.writes.split(" ").filter(Boolean);

function mayBeSent(path, method) {
  return method === "get" || WRITES.some((prefix) => path === prefix || path.startsWith(`${prefix}/`));
}

const ReadsOnly = () => ({
  statePlugins: {
    spec: { wrapSelectors: { allowTryItOutFor: () => (_state, path, method) => mayBeSent(path, method) } },
  },
});

// Where the gateway has authentication, "Authorize" asks for the tables' description with the token that it was given,
// and keeps a token only if the gateway accepts it. Until then the page shows the document that came with it.
const TablesForCallers = () => ({
  statePlugins: {
    auth: {
      wrapActions: {
        authorize: (original, system) => (given) => Object.values(given).forEach((scheme) => show(scheme, original, system)),
        logout: (original, { specActions }) => (names) => {
          original(names);
          if (PAGE.before) specActions.updateSpec(PAGE.before);
        },
      },
    },
  },
  // Swagger UI's own field shows the token, and the browser may remember it.
  wrapComponents: { Input: (Input, { React }) => (props) => React.createElement(Input, { ...props, ...hidden(props) }) },
});

async function show(scheme, authorize, { errActions, specActions }) {
  const token = (scheme.value ?? "").trim();
  const error = { authId: scheme.name, source: "auth", type: "auth" };
  errActions.clear(error);
  try {
    specActions.updateSpec(await describedTo(token));
    authorize({ [scheme.name]: { ...scheme, value: token } });
  } catch (refusal) {
    errActions.newAuthErr({ ...error, level: "warning", message: refusal.message });
  }
}

async function describedTo(token) {
  const answer = await fetch("openapi.json", { headers: { Authorization: `Bearer ${token}` } });
  if (!answer.ok) throw new Error((await answer.json()).detail);
  return answer.text();
}

function hidden({ id }) {
  return id === "auth-bearer-value" ? { type: "password", autoComplete: "off", spellCheck: false } : {};
}

window.ui = SwaggerUIBundle({
  ...(PAGE.before ? { spec: JSON.parse(PAGE.before) } : { url: "openapi.json" }),
  dom_id: "#swagger-ui",
  layout: "BaseLayout",
  plugins: [ReadsOnly, TablesForCallers],
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
