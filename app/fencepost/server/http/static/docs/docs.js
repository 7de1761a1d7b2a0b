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

// What a page of forms leaves open: why a write has no "Execute", an answer that is not of this click, a write without
// its token, which the gateway is to refuse and not the form, a token that the row takes, and errors, which are most of
// an operation's length, and are unfolded one by one.
const TOKEN = "X-Fence-Token";
const tokens = new Map(); // the header, by the path and method of an open operation

const Plainly = () => ({
  statePlugins: {
    spec: {
      wrapActions: {
        validateParams: (original, { specActions, specSelectors }) => (pathMethod, ...more) => {
          specActions.clearResponse(...pathMethod);
          const token = tokens.get(String(pathMethod));
          if (token && !specSelectors.parameterWithMetaByIdentity(pathMethod, token).get("value")) {
            specActions.changeParamByIdentity(pathMethod, token, "", false);
            return specActions.clearValidateParams(pathMethod);
          }
          return original(pathMethod, ...more);
        },
      },
    },
  },
  wrapComponents: {
    parameters: (Original, { React, specActions }) => (props) => {
      React.useEffect(() => void fillInTheNextToken(props, specActions), []);
      return React.createElement(React.Fragment, null, whyNot(React, props), React.createElement(Original, props));
    },
    response: (Original, { React }) => (props) => {
      const [open, setOpen] = React.useState(String(props.code) < "400");
      return open ? React.createElement(Original, props) : folded(React, props, () => setOpen(true));
    },
  },
});

function whyNot(React, { allowTryItOut, pathMethod: [, method] = [] }) {
  if (allowTryItOut || !method || method === "get") return null;
  const text = "This page does not send this write: the form has examples, and the table is a real one. It does under ";
  return React.createElement("p", { className: "why-not" }, text, React.createElement("code", null, "fencepost serve --try-writes"), ".");
}

const ANY_NEWER = ["/v1/data/orders", "/v1/data/orders/{order_id}", "/v1/claims"];

// The demo's orders take any newer token; once 34, the example, has been taken, the form opens with the next one.
async function fillInTheNextToken({ allowTryItOut, parameters, pathMethod }, specActions) {
  const token = parameters?.find((each) => each.get("name") === TOKEN);
  tokens.set(String(pathMethod), token);
  if (!("demo" in PAGE) || !allowTryItOut || !token || !ANY_NEWER.includes(pathMethod[0])) return;
  const answer = await fetch("v1/data/orders?select=mark:last_fence_token&order=last_fence_token.desc&limit=1");
  const marks = answer.ok ? await answer.json() : [];
  const next = Math.max(34, Number(marks[0]?.mark ?? 0) + 1);
  specActions.changeParamByIdentity(pathMethod, token, String(next), false);
}

function folded(React, { code, response }, unfold) {
  const text = (response.get("description") ?? "").replaceAll("**", "").replaceAll("`", "");
  const button = React.createElement("button", { type: "button", onClick: unfold }, text);
  return React.createElement(
    "tr",
    { className: "response folded" },
    React.createElement("td", { className: "response-col_status" }, code),
    React.createElement("td", { colSpan: 2 }, button),
  );
}

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
  plugins: [ReadsOnly, Plainly, TablesForCallers],
  deepLinking: true,
  docExpansion: "list",
  filter: true,
  tryItOutEnabled: true,
  requestInterceptor: (request) => {
    if (request.headers?.[TOKEN] === "") delete request.headers[TOKEN];
    return request;
  },
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  defaultModelExpandDepth: 2,
  syntaxHighlight: { activated: true, theme: "agate" },
  // The public validator would get the address of this gateway.
  validatorUrl: null,
});
