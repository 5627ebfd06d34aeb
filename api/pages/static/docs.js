"use strict";
// validatorUrl: Swagger UI would otherwise ask a server of its own whether the document is valid.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  tryItOutEnabled: true,
  presets: [SwaggerUIBundle.presets.apis],
});
