// Starts Swagger UI. A file of its own, because the page's Content-Security-Policy takes no inline script.
"use strict";

window.ui = SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  layout: "BaseLayout",
  deepLinking: true,
  docExpansion: "list",
  filter: true,
  tryItOutEnabled: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  defaultModelExpandDepth: 2,
  syntaxHighlight: { activated: true, theme: "agate" },
  // The public validator would be told the address of this gateway.
  validatorUrl: null,
});
